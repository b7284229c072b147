"""The wire formats: everything about one provider format in one folder."""
