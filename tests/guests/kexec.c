// Starts the kernel in one file with the initial RAM disk in another one, in place of the kernel that runs (kexec_file_load(2)).
#include <fcntl.h>
#include <linux/reboot.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 4)
        return 2;
    int kernel = open(words[1], O_RDONLY), initrd = open(words[2], O_RDONLY);
    if (syscall(SYS_kexec_file_load, kernel, initrd, strlen(words[3]) + 1, words[3], 0L) != 0) {
        perror("kexec_file_load");
        return 1;
    }
    syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_KEXEC, 0);
    perror("reboot");
    return 1;
}
