-- Windows of debounce, throttle and unique, see ADR 41.

insert into headway_schema (version, name) values (6, 'windows');

create table headway_windows (
  tenant    {text} not null,
  key       {text} not null,
  kind      text not null check (kind in ('debounce', 'throttle', 'unique')),
  task      text not null,
  job_id    {text} not null,
  opened_at bigint not null,
  until     bigint not null,               -- debounce: the start of the job; else the end of the window
  merged    integer not null,              -- calls merged into the job
  primary key (tenant, key)
);
create index headway_windows_until on headway_windows (until);
create index headway_windows_job on headway_windows (job_id);
