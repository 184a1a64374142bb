-- The schema's own version.

-- name: schema_version
-- Which step of the schema was applied last?
select max(version) as version from headway_schema;
