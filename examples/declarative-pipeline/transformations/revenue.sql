-- What each item earned.
CREATE MATERIALIZED VIEW revenue AS
SELECT item, count(*) AS orders, sum(pieces) AS pieces, sum(pieces * cents) AS cents
FROM orders
GROUP BY item;
