"""An S3 server that checks signatures (moto), with a bucket `lake`. stores.py says what it prints and reads."""

import json
import logging

import boto3
from moto import settings
from moto.server import ThreadedMotoServer

from stores import bucket, serve

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
endpoint = f"http://127.0.0.1:{port}"
common = {"endpoint_url": endpoint, "region_name": "eu-west-1"}
anybody = {**common, "aws_access_key_id": "a", "aws_secret_access_key": "b"}
iam = boto3.client("iam", **anybody)
iam.create_user(UserName="collect")
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="collect", PolicyName="lake", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="collect")["AccessKey"]
name, secret = key["AccessKeyId"], key["SecretAccessKey"]
s3 = boto3.client("s3", **common, aws_access_key_id=name, aws_secret_access_key=secret)
s3.create_bucket(Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
# From here on, requests are checked.
settings.INITIAL_NO_AUTH_ACTION_COUNT = 0


serve(
    {
        "url": "s3://lake/fleet/a",
        "options": {"endpoint": endpoint, "region": "eu-west-1", "access_key_id": name, "allow_http": "true"},
        "secret_option": "secret_access_key",
        "secret": secret,
        "wrong": "not-the-secret",
        "refusal": "SignatureDoesNotMatch",
        "environment": {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": name,
            "AWS_SECRET_ACCESS_KEY": secret,
        },
    },
    **bucket(s3),
)
