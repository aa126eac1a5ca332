/*
 * Moves bytes both ways between standard input and output and a stream socket:
 * sockets connect ADDRESS, or sockets listen ADDRESS for one connection. An
 * address is vsock:CID:PORT or unix:PATH. At the input's end the socket's
 * direction is ended; the program ends when the other one has.
 */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <linux/vm_sockets.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

static char buffer[2][65536];

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static socklen_t parse(const char *text, struct sockaddr_storage *address)
{
    struct sockaddr_vm *vm = (struct sockaddr_vm *)address;
    struct sockaddr_un *local = (struct sockaddr_un *)address;

    memset(address, 0, sizeof(*address));
    if (sscanf(text, "vsock:%u:%u", &vm->svm_cid, &vm->svm_port) == 2) {
        vm->svm_family = AF_VSOCK;
        return sizeof(*vm);
    }
    if (strncmp(text, "unix:", 5) != 0 || strlen(text + 5) >= sizeof(local->sun_path))
        exit(2);
    local->sun_family = AF_UNIX;
    strcpy(local->sun_path, text + 5);
    return sizeof(*local);
}

static int open_socket(int listening, const char *text)
{
    struct sockaddr_storage address;
    socklen_t length = parse(text, &address);
    int socket_ = socket(address.ss_family, SOCK_STREAM, 0);

    if (socket_ < 0)
        return -1;
    if (!listening)
        return connect(socket_, (struct sockaddr *)&address, length) < 0 ? -1 : socket_;
    if (bind(socket_, (struct sockaddr *)&address, length) < 0 || listen(socket_, 1) < 0)
        return -1;
    fprintf(stderr, "listening\n");
    return accept(socket_, NULL, NULL);
}

/* Moves what there is: 0 at the end, -1 after an error. */
static ssize_t move(int from, int to, char *bytes)
{
    ssize_t length = read(from, bytes, sizeof(buffer[0]));

    for (ssize_t done = 0; done < length;) {
        ssize_t written = write(to, bytes + done, (size_t)(length - done));
        if (written < 0)
            return -1;
        done += written;
    }
    return length;
}

int main(int count, char **arguments)
{
    int connection, input_open = 1;

    if (count != 3)
        return 2;
    connection = open_socket(strcmp(arguments[1], "listen") == 0, arguments[2]);
    if (connection < 0)
        return fail(arguments[1]);
    for (;;) {
        struct pollfd polls[2] = {
            { .fd = connection, .events = POLLIN },
            { .fd = input_open ? 0 : -1, .events = POLLIN },
        };
        if (poll(polls, 2, -1) < 0)
            return fail("poll");
        if (polls[0].revents != 0) {
            ssize_t moved = move(connection, 1, buffer[0]);
            if (moved < 0)
                return fail("receive");
            if (moved == 0)
                return 0;
        }
        if (polls[1].revents != 0) {
            ssize_t moved = move(0, connection, buffer[1]);
            if (moved < 0)
                return fail("send");
            if (moved == 0) {
                input_open = 0;
                shutdown(connection, SHUT_WR);
            }
        }
    }
}
