/*
 * The workload "vsock": sends back what comes on connections to any of its
 * ports, after it has said hello to port 1234 of the host. A connection whose
 * other end takes nothing is reset when there is no credit for its echo. The
 * counters say how many packets were sent back, as rounds, and how many
 * connections had no credit, as errors.
 */
#include "memory.h"
#include "workloads.h"
#include "../virtio/vsock.h"

#define HELLO_PORT 1234
#define CONNECTIONS 32

/* A connection: its ports, what was taken of it, and what it was sent back. */
struct connection {
    uint32_t host_port;
    uint32_t guest_port;
    uint32_t taken;
    uint32_t sent;
};

static struct vsock vsock;
static struct connection connections[CONNECTIONS];

static struct connection *find(uint32_t host_port, uint32_t guest_port)
{
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        if (connections[i].host_port == host_port && connections[i].guest_port == guest_port)
            return &connections[i];
    }
    return NULL;
}

static int say(uint32_t host_port, uint32_t guest_port, const struct connection *connection, uint16_t operation, uint32_t length)
{
    struct vsock_header *header = &vsock.transmit.header;

    header->source_port = guest_port;
    header->destination_port = host_port;
    header->operation = operation;
    header->flags = 0;
    header->room = VSOCK_ROOM * QUEUE_SIZE;
    header->forwarded = connection == NULL ? 0 : connection->taken;
    return vsock_send(&vsock, length);
}

static int take_data(struct connection *connection, const struct vsock_packet *packet)
{
    const struct vsock_header *header = &packet->header;
    uint32_t length = header->length < sizeof(packet->data) ? header->length : (uint32_t)sizeof(packet->data);

    connection->taken += length;
    if (connection->sent - header->forwarded + length > header->room) {
        connection->host_port = 0;
        this_counter()->errors++;
        return say(header->source_port, header->destination_port, NULL, VSOCK_RESET, 0);
    }
    memcpy(vsock.transmit.data, packet->data, length);
    connection->sent += length;
    this_counter()->rounds++;
    return say(header->source_port, header->destination_port, connection, VSOCK_DATA, length);
}

static int answer(const struct vsock_packet *packet)
{
    const struct vsock_header *header = &packet->header;
    uint32_t host_port = header->source_port, guest_port = header->destination_port;
    struct connection *connection = find(host_port, guest_port);

    switch (header->operation) {
    case VSOCK_REQUEST:
        connection = find(0, 0);
        if (connection == NULL)
            return say(host_port, guest_port, NULL, VSOCK_RESET, 0);
        *connection = (struct connection){ host_port, guest_port, 0, 0 };
        return say(host_port, guest_port, connection, VSOCK_RESPONSE, 0);
    case VSOCK_RESPONSE:
        memcpy(vsock.transmit.data, "hello", 5);
        return say(host_port, guest_port, connection, VSOCK_DATA, 5);
    case VSOCK_DATA:
        return connection == NULL ? 0 : take_data(connection, packet);
    case VSOCK_CREDIT_REQUEST:
        return connection == NULL ? 0 : say(host_port, guest_port, connection, VSOCK_CREDIT_UPDATE, 0);
    case VSOCK_SHUTDOWN:
    case VSOCK_RESET:
        if (connection != NULL)
            *connection = (struct connection){ 0, 0, 0, 0 };
        return header->operation == VSOCK_RESET ? 0 : say(host_port, guest_port, NULL, VSOCK_RESET, 0);
    default:
        return 0;
    }
}

void vsock_echo(void)
{
    uint32_t buffer;

    if (this_vcpu()->index != 0)
        return;
    int outcome = vsock_start(&vsock);
    if (outcome == 0)
        outcome = say(HELLO_PORT, HELLO_PORT, NULL, VSOCK_REQUEST, 0);
    while (outcome == 0) {
        while (outcome == 0 && vsock_receive(&vsock, &buffer)) {
            outcome = answer(&vsock.receive[buffer]);
            vsock_give_back(&vsock, buffer);
        }
        __asm__ volatile("pause");
    }
    print("vsock failed\r\n");
}
