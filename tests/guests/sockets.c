/*
 * Moves bytes both ways between standard input and output and a stream socket:
 * sockets connect ADDRESS, or sockets listen ADDRESS for one connection. An
 * address is vsock:CID:PORT or unix:PATH. At the input's end the socket's
 * direction is ended; the program ends when both have.
 */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* Moves bytes until the end; 0, or 1 after an error. */
static int move(int from, int to, const char *what)
{
    static char bytes[65536];
    ssize_t length;

    while ((length = read(from, bytes, sizeof(bytes))) > 0) {
        for (ssize_t done = 0; done < length;) {
            ssize_t written = write(to, bytes + done, (size_t)(length - done));
            if (written < 0)
                return fail(what);
            done += written;
        }
    }
    return length < 0 ? fail(what) : 0;
}

int main(int count, char **arguments)
{
    int connection, status, sent = 0;
    pid_t sender;

    if (count != 3)
        return 2;
    connection = open_socket(strcmp(arguments[1], "listen") == 0, arguments[2]);
    if (connection < 0)
        return fail(arguments[1]);
    /* A process for each direction: neither waits for the other one. */
    sender = fork();
    if (sender < 0)
        return fail("fork");
    if (sender == 0) {
        status = move(0, connection, "send");
        shutdown(connection, SHUT_WR);
        return status;
    }
    status = move(connection, 1, "receive");
    waitpid(sender, &sent, 0);
    return status != 0 || sent != 0;
}
