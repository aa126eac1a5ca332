#include "wire.h"
#include "memory.h"

/* Opens the port and agrees on a version. */
int wire_connect(struct connection *connection, struct port *port)
{
    int outcome;

    connection->port = port;
    connection->tag = 0;
    connection->received = 0;
    outcome = port_open(port);
    return outcome != 0 ? outcome : wire_hello(connection);
}

int wire_hello(struct connection *connection)
{
    static const struct hello_body hello = { { 'k', 'v', 'm', 'p', 'r', 'o', 'f', 0 }, 1, 1, 0 };
    const struct hello_reply *reply = (const struct hello_reply *)connection->reply.body;
    int outcome = wire_call(connection, FRAME_HELLO, 0, &hello, sizeof(hello));

    if (outcome == 0 && (connection->reply.header.length < sizeof(*reply) || reply->version != 1))
        return BAD_REPLY;
    return outcome;
}

/* Sends a request and waits for nothing. */
int wire_send(struct connection *connection, uint16_t kind, uint32_t subject, const void *body, uint32_t length)
{
    static struct frame frame;

    frame.header = (struct frame_header){ length, ++connection->tag, kind, 0, subject };
    memcpy(frame.body, body, length);
    return port_send(connection->port, &frame, (uint32_t)sizeof(frame.header) + length);
}

/* Takes what has come of the reply; 0, an errno of the host's, or a failure. */
int wire_look(struct connection *connection, int *complete)
{
    struct frame *reply = &connection->reply;
    const uint32_t header = sizeof(reply->header);
    uint32_t wanted = header;

    *complete = 0;
    console_poll(connection->port->console);
    if (connection->received >= header)
        wanted += reply->header.length;
    for (;;) {
        if (wanted > sizeof(*reply))
            return BAD_REPLY;
        connection->received += port_receive(connection->port, (uint8_t *)reply + connection->received, wanted - connection->received);
        if (connection->received < wanted)
            return connection->port->host_open ? 0 : CLOSED;
        if (wanted > header || reply->header.length == 0)
            break;
        wanted += reply->header.length;
    }
    *complete = 1;
    connection->received = 0;
    if (reply->header.tag != connection->tag)
        return BAD_REPLY;
    return (int)reply->header.subject;
}

/* Waits for the reply to what was sent last. */
int wire_wait(struct connection *connection)
{
    struct timeout timeout = start_timeout();
    int complete, outcome;

    for (;;) {
        outcome = wire_look(connection, &complete);
        if (complete || outcome != 0)
            return outcome;
        outcome = check_timeout(connection->port->console, &timeout);
        if (outcome != 0)
            return outcome;
    }
}

int wire_call(struct connection *connection, uint16_t kind, uint32_t subject, const void *body, uint32_t length)
{
    int outcome = wire_send(connection, kind, subject, body, length);

    return outcome != 0 ? outcome : wire_wait(connection);
}

int wire_open(struct connection *connection, uint16_t device, uint16_t minor, uint32_t *handle)
{
    struct {
        uint16_t device;
        uint16_t minor;
        uint32_t flags;
    } body = { device, minor, 0 };
    int outcome = wire_call(connection, FRAME_OPEN, 0, &body, sizeof(body));

    if (outcome == 0)
        memcpy(handle, connection->reply.body, sizeof(*handle));
    return outcome;
}

/* Asks for data and waits for nothing; wire_look() tells when they have come. */
int wire_start_read(struct connection *connection, uint32_t handle, uint32_t limit)
{
    const uint32_t body[2] = { limit, 0 };

    return wire_send(connection, FRAME_READ, handle, body, sizeof(body));
}

int wire_ioctl(struct connection *connection, uint32_t handle, uint32_t command, int64_t argument, uint32_t limit)
{
    struct ioctl_body body = { command, limit, argument };

    return wire_call(connection, FRAME_IOCTL, handle, &body, sizeof(body));
}

int wire_close(struct connection *connection, uint32_t handle)
{
    return wire_call(connection, FRAME_CLOSE, handle, NULL, 0);
}
