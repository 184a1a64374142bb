-- People who have signed in to the dashboard, see ADR 27.

insert into headway_schema (version, name) values (4, 'sessions');

create table headway_sessions (
  hash       {text} primary key,          -- of what the browser keeps
  token_hash {text} not null,             -- of the token that was shown; it decides what the session may
  created_at bigint not null,
  expires_at bigint not null
);
create index headway_sessions_token on headway_sessions (token_hash, created_at);
