"""An S3 server that checks signatures (moto), with a bucket `lake`. Prints a line of JSON with its port, and a key and its secret. Then it reads
lines: `get FOLDER` gets all objects into the folder, `put FOLDER` puts the folder's Parquet files below fleet/a. It prints the objects' keys.
"""

import json
import logging
import pathlib
import sys

import boto3
from moto import settings
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
common = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "eu-west-1"}
anybody = {**common, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
iam = boto3.client("iam", **anybody)
iam.create_user(UserName="collect")
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="collect", PolicyName="lake", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="collect")["AccessKey"]
own = {**common, "aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
s3 = boto3.client("s3", **own)
s3.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
# From here on, requests are checked.
settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
print(json.dumps({"port": port, "key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
for line in sys.stdin:
    command, folder = line.rstrip("\n").split(" ", 1)
    folder = pathlib.Path(folder)
    keys = []
    if command == "put":
        for path in folder.rglob("*.parquet"):
            key = "fleet/a/" + str(path.relative_to(folder))
            s3.upload_file(str(path), "lake", key)
            keys.append(key)
    else:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket="lake"):
            keys += [one["Key"] for one in page.get("Contents", [])]
        for key in keys:
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file("lake", key, str(path))
    print(json.dumps(sorted(keys)), flush=True)
