"""A web server with eight clients, each with a connection and a thread of the server of its own. A profile function of Python's notes which function is
called by which, from the outermost one on."""

import http.client
import http.server
import os
import sys
import threading

THREADS = 8
# CO_GENERATOR of Include/cpython/code.h.
GENERATOR = 0x20
calls = {}
served = [0] * THREADS


def note(frame, event, argument):
    while event == "call" and frame:
        caller = frame.f_back
        key = (id(caller.f_code) if caller else 0, id(frame.f_code))
        if key in calls:
            return
        # The objects stay, and so their addresses are theirs alone.
        calls[key] = (caller.f_code if caller else None, frame.f_code)
        frame = caller


def place(code):
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = "".join(sorted(map(self.row, range(20)), key=lambda row: -len(row))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def row(self, number):
        return ", ".join(str(cell) for cell in self.cells(number)) + "\n"

    def cells(self, number):
        for cell in range(5):
            yield number * cell

    def log_message(self, *words):
        pass


def browse(client, port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while not os.path.exists("/stop"):
        connection.request("GET", f"/{served[client]}")
        if len(connection.getresponse().read()) > 0:
            served[client] += 1
    connection.close()


threading.setprofile(note)
sys.setprofile(note)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever).start()
clients = [threading.Thread(target=browse, args=(client, server.server_port)) for client in range(THREADS)]
for client in clients:
    client.start()
while min(served) < 3:
    pass
print("workload running", flush=True)
for client in clients:
    client.join()
server.shutdown()
sys.setprofile(None)
# Python notes no call that makes a generator, though it executes the begin of the generator's function.
codes = {id(code): code for pair in calls.values() for code in pair if code}.values()
for maker in codes:
    for code in codes:
        if code.co_flags & GENERATOR and (code.co_name in maker.co_names or code in maker.co_consts):
            calls[id(maker), id(code)] = (maker, code)
for caller, callee in calls.values():
    print("call", place(caller) if caller else "-", place(callee), sep="\t")
print("served", sum(served), flush=True)
