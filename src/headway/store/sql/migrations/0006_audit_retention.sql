-- Entries of the audit log may leave when they are old. Younger ones than 29 days cannot be deleted, and none be changed.

insert into headway_schema (version, name) values (6, 'audit_retention');

-- only for postgresql, as one statement:
drop trigger headway_actions_kept on headway_actions

-- only for postgresql, as one statement:
create trigger headway_actions_kept before update or truncate on headway_actions
for each statement execute function headway_keep()

-- only for postgresql, as one statement:
create trigger headway_actions_not_deleted before delete on headway_actions
for each row when (old.at > {view_now} - 2505600000000) execute function headway_keep()

-- only for sqlite, as one statement:
drop trigger headway_actions_not_deleted

-- only for sqlite, as one statement:
create trigger headway_actions_not_deleted before delete on headway_actions
when old.at > {view_now} - 2505600000000
begin
  select raise(abort, 'the trail of actions is only added to');
end
