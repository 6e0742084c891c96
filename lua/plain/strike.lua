--[[ strike: removes the entries of an outbox whose ids are greater than any that scripts assign.

A stream takes no id below one that it had, even after XDEL and XSETID. So the other entries are copied into a new
stream. Redis does nothing else meanwhile, so their number and their bytes are bounded: beyond the bounds nothing is
changed.

Flags: allow-oom
Keys: outbox
Args: entries_max bytes_max
Given: NUMBER_MAX
Returns: nothing | an error
]]

local kept, size, start = {}, 0, '-'
repeat
  local page = redis.call('XRANGE', outbox, start, '+', 'COUNT', 100)
  for _, entry in ipairs(page) do
    local epoch, number = entry[1]:match('^(%d+)-(%d+)')
    if tonumber(epoch) <= NUMBER_MAX and tonumber(number) <= NUMBER_MAX then
      if #entry[2] > 7000 then
        return redis.error_reply('ERR entry ' .. entry[1] .. ' has too many fields to be kept: XDEL it')
      end
      for _, text in ipairs(entry[2]) do
        size = size + #text
      end
      kept[#kept + 1] = entry
    end
    start = '(' .. entry[1]
  end
  if #kept > tonumber(entries_max) or size > tonumber(bytes_max) then
    return redis.error_reply('ERR the outbox has more entries than Redis should copy at once: let ' ..
      '`rq-core audit run` take them first, or `rq-core audit off` if no mirror reads them')
  end
until #page < 100
redis.call('UNLINK', outbox)
for _, entry in ipairs(kept) do
  redis.call('XADD', outbox, entry[1], unpack(entry[2]))
end
