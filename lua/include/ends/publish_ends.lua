--[[ publish_ends: publishes the ids of ended jobs on the queue's channel `ended`, for clients that wait.

A message is ids with spaces between them; it only asks clients to look at these jobs. Scripts publish while the fact
`awaited`, which `listen` sets, is in the future. In other queues this costs one comparison.

It runs after the first write, so it must not fail, not even where the server's configuration has renamed SPUBLISH.
Redis notes each denied publish in its ACL LOG, so a script first asks whether the worker's user may publish. If it may
not, a client that waits finds the end when it looks next.

Keys: meta
Meta: awaited
Uses: call(now) meta(facts fact)
]]

--- Publish the ids of these jobs, if there are any. The caller has written the ends of the jobs before.
local function publish_ends(ids)
  if facts.awaited and ids and #ids > 0 and fact('awaited') > now then
    local channel = meta:sub(1, -5) .. CHANNEL
    local is_known, may_publish = pcall(redis.acl_check_cmd, 'SPUBLISH', channel, '')
    if is_known and may_publish then
      redis.pcall('SPUBLISH', channel, table.concat(ids, ' '))
    end
  end
end
