"""Work queues: jobs that are taken, acknowledged, retried and given up."""
