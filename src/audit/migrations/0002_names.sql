-- A run that is made again under its name is asked for by name.
CREATE INDEX runs_by_name ON runs (namespace, name);
