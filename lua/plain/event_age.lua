--[[ event_age: returns the time (Unix ms) at which the oldest event that waits for the mirror was written, or a later
time; nothing if there is no outbox.

This is the time of the second entry, since the first may be the mirror's anchor, which SQL has. Only the time is read,
since an entry may have ten thousand jobs.

Keys: outbox
Returns: MS
]]

local entries = redis.call('XRANGE', outbox, '-', '+', 'COUNT', 2)
local fields = entries[1] and entries[#entries][2] or {}
for i = 1, #fields, 2 do
  if fields[i] == 'at' then
    return fields[i + 1]
  end
end
return false
