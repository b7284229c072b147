"""The only state: threads of entries, appended to and never changed."""
