/* Runs a command on a terminal of its own, whose other end is standard input and output. */
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Moves what is there from one descriptor to another. False at the end. */
static int move(int from, int to)
{
    char bytes[4096];
    ssize_t length = read(from, bytes, sizeof(bytes));
    ssize_t done = 0;

    while (done < length) {
        ssize_t written = write(to, bytes + done, (size_t)(length - done));
        if (written <= 0)
            return 0;
        done += written;
    }
    return length > 0;
}

int main(int count, char **words)
{
    struct winsize size = { .ws_row = 33, .ws_col = 111 };
    int terminal;
    int status;
    pid_t child;

    if (count < 2)
        return 2;
    child = forkpty(&terminal, NULL, NULL, &size);
    if (child < 0) {
        perror("forkpty");
        return 1;
    }
    if (child == 0) {
        execvp(words[1], words + 1);
        perror(words[1]);
        _exit(127);
    }
    for (;;) {
        struct pollfd both[2] = {
            { .fd = STDIN_FILENO, .events = POLLIN },
            { .fd = terminal, .events = POLLIN },
        };
        if (poll(both, 2, -1) < 0)
            continue;
        if (both[1].revents != 0 && !move(terminal, STDOUT_FILENO))
            break;
        if (both[0].revents != 0 && !move(STDIN_FILENO, terminal))
            break;
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
