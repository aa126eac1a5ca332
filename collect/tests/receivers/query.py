"""Has DuckDB answer each query of queries.sql on a folder of Parquet files: query.py QUERIES FOLDER. Prints a JSON object with the rows by name."""

import json
import sys

import duckdb

queries, folder = sys.argv[1:]
connection = duckdb.connect()
connection.execute(
    "CREATE VIEW samples AS SELECT * FROM read_parquet("
    f"'{folder}/*/*/*/*.parquet', hive_partitioning = true, hive_types_autocast = false)"
)
found = {}
for part in open(queries, encoding="utf-8").read().split("-- name: ")[1:]:
    name, _, query = part.partition("\n")
    found[name.strip()] = connection.execute(query).fetchall()
print(json.dumps(found))
