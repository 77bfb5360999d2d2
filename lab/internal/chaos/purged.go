package chaos

// checkPurges compares the outbox with what was committed: it has every event, except
// the events before a purge, which must be gone. The event of a purge is the last of its
// video, and has no content. So the row and the entry have none either, because they are
// compared with that event.
func (c *checker) checkPurges() {
	c.verdict.Figures.Purges = len(c.purges)
	for id, e := range c.events {
		switch purge := c.purges[e.Video]; {
		case purge != nil && e.Version > purge.Version:
			c.broken(AfterPurge, "video %s was purged in version %d, and there is event %s of version %d", e.Video, purge.Version, id, e.Version)
		case e == purge && !e.Blank:
			c.broken(AfterPurge, "video %s: event %s of its purge has content", e.Video, id)
		case c.mayMiss(e) && c.h.Database.Outbox[id]:
			c.broken(AfterPurge, "video %s was purged, and the outbox still has event %s, version %d", e.Video, id, e.Version)
		case !c.mayMiss(e) && !c.h.Database.Outbox[id]:
			c.broken(EventErased, "event %s, version %d of video %s", id, e.Version, e.Video)
		}
	}
}

// mayMiss reports whether an event may never be published: its video was purged later,
// which erases pending events.
func (c *checker) mayMiss(e *EventRow) bool {
	purge := c.purges[e.Video]
	return purge != nil && e.Version < purge.Version
}
