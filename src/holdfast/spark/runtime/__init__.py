"""What the other packages run on: the Spark session, an object store on a thread, a table's files, and the doctor."""
