"""The data sources that read queues and message stores."""
