// Package mixed is a group of which some ranks share memory and others do not.
package mixed
