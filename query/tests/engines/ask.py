"""Asks each engine each query of queries.sql about a generated fleet, and compares the answers with what is known of it.

    ask.py [--limit] QUERIES FOLDER TRUTH PROGRAM ENGINE...

TRUTH is what the generator printed, PROGRAM kvmprof-query. Prints how long each query took, in s, and how much time of processors, which other
programs on the machine change less, and whether DuckDB kept to 10 s a query; ends with 1 if an answer is wrong. With --limit, for machines that
nobody else uses, it also ends with 1 if DuckDB was slower.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time

CORES = 2
TOLERANCE = 1e-6
# Seconds of a query, by DuckDB.
LIMIT = 10


def used(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


class DuckDb:
    def __init__(self, folder):
        import duckdb

        self.connection = duckdb.connect(config={"threads": CORES, "memory_limit": "4GB"})
        self.connection.execute(view("in DuckDB", folder))

    def ask(self, query):
        return self.connection.execute(query).fetchall()

    def used(self):
        return used(resource.RUSAGE_SELF)


class Spark:
    def __init__(self, folder):
        os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 3g pyspark-shell"
        from pyspark.sql import SparkSession

        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
            "spark.sql.ansi.enabled": "false",
            "spark.sql.shuffle.partitions": "4",
        }
        builder = SparkSession.builder.master(f"local[{CORES}]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        self.session = builder.getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")
        self.session.sql(view("in Spark", folder))

    def ask(self, query):
        return [tuple(row) for row in self.session.sql(query).collect()]

    def used(self):
        # The Java program (proc_pid_stat(5)): behind its name, the 12th and 13th words.
        with open(f"/proc/{self.session.sparkContext._gateway.proc.pid}/stat", encoding="utf-8") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Query:
    def __init__(self, folder):
        self.command = [program, "--data", folder, "--format", "json"]

    def ask(self, query):
        run = subprocess.run([*self.command, "--", query], check=True, capture_output=True, text=True)
        return [tuple(json.loads(line).values()) for line in run.stdout.splitlines()]

    def used(self):
        return used(resource.RUSAGE_CHILDREN)


def view(engine, folder):
    """The statement that queries.sql has for an engine."""
    after = text.partition(engine)[2]
    return re.search(r"CREATE .*;", after).group().rstrip(";").replace("FOLDER", folder)


def numbered(rows):
    """The first column and the first number behind it, as the truth has them."""
    return [(row[0], float(next(value for value in row[1:] if isinstance(value, (int, float))))) for row in rows]


def is_close(one, other):
    return abs(one - other) <= TOLERANCE * max(1, abs(other))


def is_same(found, truth):
    """Rows with the same number may be in any order, and of those at the end each may be left out."""
    if len(found) != len(truth) or not all(is_close(one[1], other[1]) for one, other in zip(found, truth)):
        return False
    known = dict(map(tuple, truth))
    return all(is_close(known.get(name, truth[-1][1]), number) for name, number in found)


def check_limit(times):
    """Prints whether DuckDB kept to the limit; whether it did, or wasn't asked."""
    took = {name: times[name, "duckdb"][0] for name in asked if (name, "duckdb") in times}
    slow = [f"{name} took {seconds:.1f} s" for name, seconds in took.items() if seconds > LIMIT]
    if slow:
        print(f"FAIL: DuckDB, {LIMIT} s a query: " + ", ".join(slow))
    elif took:
        print(f"PASS: DuckDB, {LIMIT} s a query: the slowest took {max(took.values()):.1f} s")
    return not slow


arguments = sys.argv[1:]
is_limited = arguments[0] == "--limit"
queries, folder, truth, program, *engines = arguments[is_limited:]
text = open(queries, encoding="utf-8").read()
asked = {}
for part in text.split("-- name: ")[1:]:
    name, _, query = part.partition("\n")
    asked[name.strip()] = query.strip().rstrip(";")
with open(truth, encoding="utf-8") as file:
    known = json.load(file)
answers = known["answers"]
assert sorted(asked) == sorted(answers), (list(asked), list(answers))

wrong = 0
times = {}
for engine in engines:
    begin = time.monotonic()
    opened = {"duckdb": DuckDb, "spark": Spark, "query": Query}[engine](folder)
    times["(start)", engine] = (time.monotonic() - begin, opened.used())
    for name, query in asked.items():
        begin, before = time.monotonic(), opened.used()
        found = numbered(opened.ask(query))
        times[name, engine] = (time.monotonic() - begin, opened.used() - before)
        print(f"{engine} {name}: {times[name, engine][0]:.1f} s", file=sys.stderr, flush=True)
        if not is_same(found, answers[name]):
            wrong += 1
            print(f"WRONG: {engine} {name}: {found}, not {answers[name]}")

print(f"\n{known['rows']} rows, {known['ticks']} ticks, {CORES} cores: seconds of each query, and of processors for it\n")
print(f"{'query':<38}" + "".join(f"{engine:>16}" for engine in engines))
for name in ["(start)", *asked]:
    print(f"{name:<38}" + "".join("{:>9.1f}{:>7.1f}".format(*times[name, engine]) for engine in engines))
print(f"\n{len(engines) * len(asked) - wrong} answers are as the generator knows them, {wrong} are wrong")
is_fast = check_limit(times)
sys.exit(1 if wrong or (is_limited and not is_fast) else 0)
