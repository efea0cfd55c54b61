"""Files of people and of the service: documents, durable directories, private and temporary files, URLs of paths."""
