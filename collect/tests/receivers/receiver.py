"""Takes OTLP profiles and pprof pushes. Prints its port, then a line of JSON for each request: receiver.py [[ADDRESS:]PORT [FOLDER]]

With a FOLDER of certificates.py it uses TLS, and takes requests to `/shown` only from clients with a certificate of that authority.

opentelemetry-proto decodes OTLP, and `go tool pprof -raw` validates and decodes pprof. The first requests to each path that ends in `/busy` get 503,
those to `/later` get 429 with the seconds until the next one, those to `/wrong` get 400. One profile of the first request to `/partly` is rejected,
and all of the second.
"""

import base64
import gzip
import http.server
import json
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

BUSY = 2
LATER = "3"


def partly(profiles, rejected):
    answer = profiles_service_pb2.ExportProfilesServiceResponse()
    answer.partial_success.rejected_profiles = len(profiles) if rejected == "all" else int(rejected)
    answer.partial_success.error_message = "too much of it"
    return answer


def otlp(body):
    request = profiles_service_pb2.ExportProfilesServiceRequest.FromString(body)
    tables = request.dictionary
    strings = tables.string_table
    # Entry 0 of each table is empty.
    assert strings[0] == ""
    for table in (tables.mapping_table, tables.location_table, tables.function_table, tables.link_table, tables.attribute_table,
                  tables.stack_table):
        assert table[0] == type(table[0])(), table[0]
    profiles = []
    for resource in request.resource_profiles:
        attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
        for scope in resource.scope_profiles:
            by = [scope.scope.name, scope.scope.version]
            for profile in scope.profiles:
                samples = []
                for sample in profile.samples:
                    labels = [tables.attribute_table[place] for place in sample.attribute_indices]
                    stack = []
                    for place in tables.stack_table[sample.stack_index].location_indices:
                        location = tables.location_table[place]
                        kinds = [tables.attribute_table[one].value.string_value for one in location.attribute_indices]
                        function = tables.function_table[location.lines[0].function_index]
                        module = strings[tables.mapping_table[location.mapping_index].filename_strindex]
                        stack.append([strings[function.name_strindex], module, *kinds])
                    samples.append({
                        "labels": {strings[one.key_strindex]: one.value.string_value for one in labels},
                        "stack": stack,
                        "values": list(sample.values),
                    })
                kind, period = profile.sample_type, profile.period_type
                profiles.append({
                    "id": profile.profile_id.hex(),
                    "attributes": attributes,
                    "time": profile.time_unix_nano,
                    "duration": profile.duration_nano,
                    "period": profile.period,
                    "period_type": [strings[period.type_strindex], strings[period.unit_strindex]],
                    "scope": by,
                    "type": [strings[kind.type_strindex], strings[kind.unit_strindex]],
                    "samples": samples,
                })
    return profiles


def pprof(profile):
    with tempfile.NamedTemporaryFile(suffix=".pb.gz") as file:
        file.write(profile)
        file.flush()
        run = subprocess.run(["go", "tool", "pprof", "-raw", file.name], check=True, capture_output=True, text=True)
        return run.stdout


def form(body, kind):
    boundary = kind.partition("boundary=")[2].encode()
    parts = body.split(b"--" + boundary)
    assert parts[0] == b"" and parts[2] == b"--\r\n" and len(parts) == 3, parts
    head, _, profile = parts[1].partition(b"\r\n\r\n")
    assert b'name="profile"' in head, head
    return profile[:-2]


SHOWING = threading.Lock()


def show(found):
    """Prints a line. Requests come at the same time."""
    with SHOWING:
        print(json.dumps(found), flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    busy = 0
    rejected = ["1", "all"]

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        address = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(address.query))
        status = 200
        answer = b""
        headers = {}
        if address.path.endswith("/busy") and Handler.busy < BUSY:
            Handler.busy += 1
            status = 503
        elif address.path.endswith("/later") and Handler.busy < 1:
            Handler.busy += 1
            status = 429
            headers["Retry-After"] = LATER
            show({"at": time.monotonic()})
        elif address.path.endswith("/wrong"):
            status = 400
        elif address.path.endswith("/shown") and not self.connection.getpeercert():
            status = 403
        else:
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            found = {"at": time.monotonic(), "path": address.path, "query": query, "tenant": self.headers["X-Scope-OrgID"], "secret": self.headers["Authorization"]}
            if "v1development" in address.path:
                found["profiles"] = otlp(body)
                if address.path.endswith("/partly") and Handler.rejected:
                    answer = partly(found["profiles"], Handler.rejected.pop(0)).SerializeToString()
            elif address.path.startswith("/ingest"):
                found["pprof"] = pprof(form(body, self.headers["Content-Type"]))
            else:
                document = json.loads(body)
                (series,) = document["series"]
                (sample,) = series["samples"]
                found["labels"] = {one["name"]: one["value"] for one in series["labels"]["labels"]}
                found["pprof"] = pprof(base64.b64decode(sample["rawProfile"], validate=True))
            show(found)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


def main(port="0", folder=None):
    # Each connection has a thread, so that one that is kept open doesn't block others.
    address, _, port = port.rpartition(":")
    server = http.server.ThreadingHTTPServer((address or "127.0.0.1", int(port)), Handler)
    if folder:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=f"{folder}/ca.pem")
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_cert_chain(f"{folder}/server.pem", f"{folder}/server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
