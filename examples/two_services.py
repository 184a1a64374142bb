"""Share a store between two services: each owns the schedules that it declares, and removes only those."""

import tempfile

from headway import Every, Headway

store = f"sqlite:///{tempfile.mkdtemp()}/headway.db"


def service(name: str, *schedules: str) -> Headway:
    """Create a service with the schedules that one release of its code declares."""
    app = Headway(store, name=name)
    for schedule in schedules:
        app.schedule(schedule, "work", Every("1h"))
    return app


print("billing:", service("billing", "invoices", "reminders").sync_sync())
print("search:", service("search", "reindex").sync_sync())
print("billing, next release:", service("billing", "invoices").sync_sync())
print("search:", service("search", "reindex", "invoices").sync_sync()["invoices"])  # Owned by another app: skipped.

# billing: {'invoices': 'created', 'reminders': 'created'}
# search: {'reindex': 'created'}
# billing, next release: {'invoices': 'unchanged', 'reminders': 'removed'}
# search: skipped: schedule 'invoices' belongs to the app 'billing'; choose another name, or remove it first
