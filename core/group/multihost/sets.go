package multihost

import (
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// epochOf returns the epoch of a members word.
func epochOf(word uint64) membership.Epoch { return membership.Members(word).Epoch() }

// ranksOf returns the ranks of a members word.
func ranksOf(word uint64) rankset.Set { return membership.Members(word).Ranks() }
