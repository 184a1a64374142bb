"""`headway scheduler`, alone."""

from headway.cli.serve import scheduler
from headway.cli.session import new_command

app = new_command(scheduler)
