"""What the object stores of the tests have in common. Each prints a line of JSON with its address, and then reads commands, a line each:
`get FOLDER` copies all objects into the folder, `put FOLDER` stores the folder's Parquet files below fleet/a. Both print the objects' keys.
"""

import json
import pathlib
import sys


def serve(address, put, keys, get):
    """Prints `address`, and carries out the commands on standard input by `put(path, key)`, `keys()` and `get(key, path)`.

    An address has the data set's URL, the collector's options, the name of the secret option with its value and a wrong one, what the store
    answers to the wrong one, and the environment of `kvmprof query`, whose last variable is the secret.
    """
    print(json.dumps(address), flush=True)
    for line in sys.stdin:
        command, folder = line.rstrip("\n").split(" ", 1)
        folder = pathlib.Path(folder)
        if command == "put":
            found = []
            for path in folder.rglob("*.parquet"):
                found.append("fleet/a/" + str(path.relative_to(folder)))
                put(path, found[-1])
        else:
            found = list(keys())
            for key in found:
                path = folder / key
                path.parent.mkdir(parents=True, exist_ok=True)
                get(key, path)
        print(json.dumps(sorted(found)), flush=True)


def bucket(s3):
    """The functions that `serve` needs, on the bucket `lake` of a boto3 client."""

    def keys():
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket="lake"):
            yield from (one["Key"] for one in page.get("Contents", []))

    return {
        "put": lambda path, key: s3.upload_file(str(path), "lake", key),
        "keys": keys,
        "get": lambda key, path: s3.download_file("lake", key, str(path)),
    }
