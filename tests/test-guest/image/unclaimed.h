/* Addresses that belong to no device: writes are lost, reads give all-ones. Assembly includes this, too. */
#ifndef UNCLAIMED_H
#define UNCLAIMED_H

#define UNCLAIMED_MMIO 0xe0000000
#define UNCLAIMED_PORT 0x510

#endif
