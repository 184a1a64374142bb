-- The schema's own version.

-- name: schema_version
-- Read the last applied migration.
select max(version) as version from headway_schema;
