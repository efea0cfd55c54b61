"""The recent writes that conflicts are checked against."""
