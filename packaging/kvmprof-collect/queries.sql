-- Questions to a fleet, which DuckDB, Spark and kvmprof query take as they are. `samples` is the data set: for kvmprof query that of --data,
-- in DuckDB
--   CREATE VIEW samples AS SELECT * FROM read_parquet('FOLDER/*/*/*/*.parquet', hive_partitioning = true, hive_types_autocast = false);
-- in Spark, with spark.sql.sources.partitionColumnTypeInference.enabled and spark.sql.ansi.enabled = false,
--   CREATE TEMPORARY VIEW samples USING parquet OPTIONS (path 'FOLDER');
-- Each query has a name in the line before it. Days and releases are in the queries: put yours there.

-- name: top_functions
-- The functions in which the guests of the fleet spend their time.
SELECT function, module, sum(nanoseconds) / 1e9 AS seconds
FROM samples
WHERE mode <> 'idle'
GROUP BY function, module
ORDER BY seconds DESC, function
LIMIT 20;

-- name: hosts_with_function
-- Time with a function anywhere on the stack, by host.
SELECT host, sum(nanoseconds) / 1e9 AS seconds
FROM samples
WHERE array_contains(stack, 'do_fault')
GROUP BY host
ORDER BY seconds DESC, host
LIMIT 20;

-- name: by_process
-- Processes of all guests, by their names.
SELECT process, sum(nanoseconds) / 1e9 AS seconds, count(DISTINCT guest) AS guests
FROM samples
WHERE mode <> 'idle'
GROUP BY process
ORDER BY seconds DESC, process
LIMIT 20;

-- name: by_host
-- How busy the guests of each host are.
SELECT host, sum(CASE WHEN mode = 'idle' THEN 0 ELSE ticks END) * 1e2 / sum(ticks) AS busy_percent
FROM samples
GROUP BY host
ORDER BY busy_percent DESC, host
LIMIT 20;

-- name: by_label
-- Time by a label: of the configuration, as here, or of processes, such as labels['user'].
SELECT labels['zone'] AS zone, sum(nanoseconds) / 1e9 AS seconds
FROM samples
WHERE mode <> 'idle'
GROUP BY labels['zone']
ORDER BY seconds DESC, zone;

-- name: kernel_share_by_release
-- The kernel's part of the time, by its release: which one costs more?
SELECT kernel, sum(CASE WHEN mode IN ('kernel', 'interrupt') THEN ticks ELSE 0 END) * 1e2 / sum(ticks) AS kernel_percent
FROM samples
WHERE mode <> 'idle'
GROUP BY kernel
ORDER BY kernel_percent DESC, kernel;

-- name: functions_that_regressed
-- Functions whose share differs most between two releases of the kernel.
WITH counts AS (
    SELECT kernel, function, sum(ticks) AS ticks FROM samples WHERE mode <> 'idle' GROUP BY kernel, function
), totals AS (
    SELECT kernel, sum(ticks) AS ticks FROM counts GROUP BY kernel
), shares AS (
    SELECT counts.function, counts.kernel, counts.ticks * 1e2 / totals.ticks AS percent
    FROM counts JOIN totals ON counts.kernel = totals.kernel
)
SELECT function,
    sum(CASE WHEN kernel = '6.12.2' THEN percent ELSE 0 END) - sum(CASE WHEN kernel = '6.12.1' THEN percent ELSE 0 END) AS points
FROM shares
GROUP BY function
ORDER BY points DESC, function
LIMIT 20;

-- name: diff_of_two_days
-- Functions that took more time on one day than on another, in seconds.
SELECT function,
    sum(CASE WHEN date = '2026-03-02' THEN nanoseconds ELSE 0 END) / 1e9 - sum(CASE WHEN date = '2026-03-01' THEN nanoseconds ELSE 0 END) / 1e9 AS seconds
FROM samples
WHERE mode <> 'idle' AND date IN ('2026-03-01', '2026-03-02')
GROUP BY function
ORDER BY seconds DESC, function
LIMIT 20;

-- name: hosts_whose_interrupts_off_time_grew
-- Hosts on which the guests' share of time with interrupts off grew between two days, in points. Of guests that the host's kernel samples, it isn't known.
SELECT host,
    sum(CASE WHEN date = '2026-03-02' THEN interrupts_off ELSE 0 END) * 1e2 / sum(CASE WHEN date = '2026-03-02' THEN ticks ELSE 0 END)
    - sum(CASE WHEN date = '2026-03-01' THEN interrupts_off ELSE 0 END) * 1e2 / sum(CASE WHEN date = '2026-03-01' THEN ticks ELSE 0 END) AS points
FROM samples
WHERE date IN ('2026-03-01', '2026-03-02') AND interrupts_off IS NOT NULL
GROUP BY host
HAVING min(date) < max(date)
ORDER BY points DESC, host
LIMIT 20;

-- name: callers_of
-- Who calls a function, by time. The caller is the second one on the stack: lists begin at 1, but Spark's at 0.
WITH calls AS (
    SELECT CASE WHEN stack[0] IS NULL THEN stack[2] ELSE stack[1] END AS caller, nanoseconds
    FROM samples
    WHERE function = 'copy_page' AND mode <> 'idle'
)
SELECT caller, sum(nanoseconds) / 1e9 AS seconds
FROM calls
GROUP BY caller
ORDER BY seconds DESC, caller
LIMIT 20;
