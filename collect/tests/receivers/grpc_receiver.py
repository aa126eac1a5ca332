"""Takes OTLP profiles by gRPC. Prints its port, then a line of JSON for each request: grpc_receiver.py FOLDER ANSWER...

FOLDER has the files of certificates.py; with `-` there is no TLS. The first requests get these answers: a code, such as UNAVAILABLE, and after a
colon the seconds to wait; or PARTLY, and after a colon the number of profiles that are rejected.
"""

import concurrent.futures
import json
import sys
import time

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2, profiles_service_pb2_grpc

import receiver


class Profiles(profiles_service_pb2_grpc.ProfilesServiceServicer):
    def __init__(self, answers):
        self.answers = answers

    def Export(self, request, context):
        found = {
            "headers": {key: value for key, value in context.invocation_metadata()},
            "deadline": context.time_remaining(),
            "at": time.monotonic(),
        }
        answer, _, detail = self.answers.pop(0).partition(":") if self.answers else ("", "", "")
        if answer in ["", "PARTLY"]:
            found["profiles"] = receiver.otlp(request.SerializeToString())
        print(json.dumps(found), flush=True)
        if answer == "PARTLY":
            return receiver.partly(found["profiles"], detail)
        if answer:
            code = getattr(grpc.StatusCode, answer)
            if not detail:
                context.abort(code, "not now")
            details = any_pb2.Any()
            delay = duration_pb2.Duration(seconds=int(detail))
            details.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
            status = status_pb2.Status(code=code.value[0], message="not now", details=[details])
            context.abort_with_status(rpc_status.to_status(status))
        return profiles_service_pb2.ExportProfilesServiceResponse()


def main(folder, *answers):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=1))
    profiles_service_pb2_grpc.add_ProfilesServiceServicer_to_server(Profiles(list(answers)), server)
    if folder == "-":
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        key, chain, authority = (open(f"{folder}/{name}", "rb").read() for name in ["server.key", "server.pem", "ca.pem"])
        credentials = grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


main(*sys.argv[1:])
