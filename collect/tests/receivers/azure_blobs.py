"""Microsoft's emulator of Azure's blob storage (Azurite), with a container `lake`. It checks signatures. stores.py says what it prints and reads."""

import base64
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import tempfile

from azure.storage.blob import BlobServiceClient

from stores import serve

NAME = "collect"
key = base64.b64encode(os.urandom(64)).decode()
program = pathlib.Path(__file__).parent / "node_modules/azurite/dist/src/blob/main.js"
folder = tempfile.TemporaryDirectory()
server = subprocess.Popen(
    ["node", program, "--blobPort", "0", "--location", folder.name, "--skipApiVersionCheck", "--disableTelemetry"],
    env={**os.environ, "AZURITE_ACCOUNTS": f"{NAME}:{key}"},
    stdout=subprocess.PIPE,
    text=True,
    # The server is killed when this process ends (PR_SET_PDEATHSIG).
    preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
)
for line in server.stdout:
    if port := re.search(r"successfully listens on http://[^:]*:(\d+)", line):
        break
endpoint = f"http://127.0.0.1:{port.group(1)}/{NAME}"
lake = BlobServiceClient(endpoint, credential=key).create_container("lake")


def put(path, name):
    with open(path, "rb") as file:
        lake.upload_blob(name, file)


serve(
    {
        "url": "az://lake/fleet/a",
        "options": {"account_name": NAME, "endpoint": endpoint, "allow_http": "true"},
        "secret_option": "account_key",
        "secret": key,
        "wrong": base64.b64encode(bytes(64)).decode(),
        "refusal": "AuthorizationFailure",
        "environment": {
            "AZURE_STORAGE_ENDPOINT": endpoint,
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": NAME,
            "AZURE_STORAGE_ACCOUNT_KEY": key,
        },
    },
    put=put,
    keys=lambda: (blob.name for blob in lake.list_blobs()),
    get=lambda name, path: path.write_bytes(lake.download_blob(name).readall()),
)
