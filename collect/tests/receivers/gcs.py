"""A server with the interface of Google Cloud Storage, with a bucket `lake`. Its XML interface is S3's (moto). Each request has to have a token that
the service account has signed, and Google's own library checks it. stores.py says what it prints and reads.
"""

import json
import logging
import threading

import boto3
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt
from moto.server import DomainDispatcherApplication, ThreadedMotoServer, create_backend_app
from werkzeug.serving import make_server

from stores import bucket, serve

ACCOUNT = "collect@lake.iam.gserviceaccount.com"
logging.getLogger("werkzeug").setLevel(logging.ERROR)
store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
store.start()
s3 = boto3.client(
    "s3",
    endpoint_url=f"http://127.0.0.1:{store.get_host_and_port()[1]}",
    region_name="us-east-1",
    aws_access_key_id="a",
    aws_secret_access_key="b",
)
s3.create_bucket(Bucket="lake")


def private_key():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key, pem.decode()


key, pem = private_key()
public = key.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
backend = DomainDispatcherApplication(create_backend_app)
# S3 needs an account; moto doesn't check its signature.
SOMEBODY = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def checked(environment, start_response):
    token = environment.pop("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
    try:
        claims = jwt.decode(token, certs={"1": public})
        if claims["iss"] != ACCOUNT or "devstorage" not in claims["scope"] and "cloud-platform" not in claims["scope"]:
            raise ValueError(f"not for this store: {claims}")
    except Exception as error:
        start_response("401 Unauthorized", [("Content-Type", "application/xml")])
        text = f"<Error><Code>AuthenticationRequired</Code><Message>{type(error).__name__}</Message></Error>"
        return [text.encode()]
    return backend({**environment, "HTTP_AUTHORIZATION": SOMEBODY}, start_response)


server = make_server("127.0.0.1", 0, checked, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
endpoint = f"http://127.0.0.1:{server.server_port}"


def account(pem):
    return json.dumps(
        {"type": "service_account", "private_key": pem, "private_key_id": "1", "client_email": ACCOUNT}
    )


serve(
    {
        "url": "gs://lake/fleet/a",
        "options": {"base_url": endpoint, "allow_http": "true"},
        "secret_option": "service_account_key",
        "secret": account(pem),
        "wrong": account(private_key()[1]),
        "refusal": "AuthenticationRequired",
        "environment": {
            "GOOGLE_BASE_URL": endpoint,
            "GOOGLE_ALLOW_HTTP": "true",
            "GOOGLE_SERVICE_ACCOUNT_KEY": account(pem),
        },
    },
    **bucket(s3),
)
