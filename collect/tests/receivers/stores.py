"""What the object stores of the tests have in common: each prints a line of JSON that says how it is reached, and then reads lines:
`get FOLDER` gets all objects into the folder, `put FOLDER` puts the folder's Parquet files below fleet/a. It prints the objects' keys.
"""

import json
import pathlib
import sys


def serve(address, put, keys, get):
    """Prints `address`, and does what lines of the standard input say: `put(path, key)`, `keys()`, `get(key, path)`.

    An address has the data set's URL, the collector's options, the option that is secret with its value and a wrong one, what the store
    says of that, and the environment of `kvmprof query`, of which the last variable is the secret.
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
    """What `serve` does with the bucket `lake` of a client of boto3."""

    def keys():
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket="lake"):
            yield from (one["Key"] for one in page.get("Contents", []))

    return {
        "put": lambda path, key: s3.upload_file(str(path), "lake", key),
        "keys": keys,
        "get": lambda key, path: s3.download_file("lake", key, str(path)),
    }
