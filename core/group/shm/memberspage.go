package shm

import (
	"errors"

	"github.com/moewire/moewire/core/internal/sys"
)

// memberspage is the group's page on this host, with the file that is handed on.
type memberspage struct {
	*region
	fd *sys.FD
}

// move exchanges the page. Other goroutines may still hold words of the old one: it stays
// mapped, unless many have come since. It is called with mu held.
func (d *hostDomain) move(to *memberspage) {
	old := d.members.Swap(to)
	sys.CloseAll(old.fd)
	if d.oldPages = append(d.oldPages, old); len(d.oldPages) > maxFormer {
		d.oldPages[0].Release()
		d.oldPages = d.oldPages[1:]
	}
}

// newMembersPage makes the group's page, usually with epoch 1 and the present ranks. It
// is complete before another rank can fetch it.
func newMembersPage(first uint64) (*sys.FD, error) {
	fd, err := sys.NewMemfd("moewire-members")
	if err != nil {
		return nil, err
	}
	err = sys.Grow(fd, int64(sys.PageSize()))
	if err == nil {
		var page *region
		if page, err = mapMembers(fd); err == nil {
			page.Word(0).Store(first)
			page.Release()
			return fd, nil
		}
	}
	return nil, errors.Join(err, fd.Close())
}

// mapMembers maps the members page, after checking its size.
func mapMembers(fd *sys.FD) (*region, error) {
	n := int64(sys.PageSize())
	if err := checkFile(fd, n); err != nil {
		return nil, err
	}
	page, err := mapRegion(fd, 0, 0, n)
	if err == nil {
		sys.Prefault(page.data)
	}
	return page, err
}
