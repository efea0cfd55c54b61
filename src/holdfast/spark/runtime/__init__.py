"""The Spark session, the driver's and the workers' access to a log."""
