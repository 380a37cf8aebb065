package shm

import "github.com/moewire/moewire/core/internal/sys"

// GroupID names the group on this host for whoever looks from outside: the
// inode of the members page. 0 where it cannot be had.
func (d *domain) GroupID() uint64 {
	id, err := sys.Inode(d.membersFD)
	if err != nil {
		return 0
	}
	return id
}
