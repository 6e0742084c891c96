--[[ publish_ends: those who wait for ends of jobs are told which have ended, on the channel `ended` of the queue, a channel of its slot.

A message is ids with spaces between them, and says no more than: look at these. It comes while the fact `awaited`, which `listen` sets,
says that a client waits; other queues compare a fact that they have, and that is all.

It comes after the first write, so it must not fail, not even where the server's configuration has renamed SPUBLISH. Redis notes each
publish that is denied in its ACL LOG, so a worker whose user lacks the channel is asked for its right before it publishes; who waits then
finds the end with the next look.

Keys: meta
Meta: awaited
Uses: call(now) meta(facts fact)
]]

--- Tell that these jobs have ended, if there are any. It has to be called after they were written.
local function publish_ends(ids)
  if facts.awaited and ids and #ids > 0 and fact('awaited') > now then
    local channel = meta:sub(1, -5) .. CHANNEL
    local is_known, may_publish = pcall(redis.acl_check_cmd, 'SPUBLISH', channel, '')
    if is_known and may_publish then
      redis.pcall('SPUBLISH', channel, table.concat(ids, ' '))
    end
  end
end
