-- The newest state of each order; one that was withdrawn is gone.
CREATE MATERIALIZED VIEW orders AS
SELECT
  substr(CAST(key AS STRING), 7) AS number,
  newest.version,
  newest.placed.item,
  newest.placed.pieces,
  newest.placed.cents
FROM (
  SELECT
    key,
    max_by(
      struct(version, kind, from_json(CAST(value AS STRING), 'item STRING, pieces INT, cents INT') AS placed),
      version
    ) AS newest
  FROM operations
  GROUP BY key
)
WHERE newest.kind = 'write';
