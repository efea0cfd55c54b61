"""Read an embedded queue (``queue``) and a message store (``store``) as Spark data sources."""
