package shm

import "github.com/moewire/moewire/core/internal/sys"

// GroupID names the group on this host for observers outside of it: the inode of the
// members page. 0 where it cannot be had.
func (d *hostDomain) GroupID() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, err := sys.Inode(d.members.Load().fd)
	if err != nil {
		return 0
	}
	return id
}
