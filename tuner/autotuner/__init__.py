"""The decorator: what a user writes, and what a call goes through."""
