"""How TOML is read, merged and checked; kinds of values; where a project's files are."""
