--[[ ripe: says whether what a job waits for has come: a signal, or a moment. Each script that parks a job or changes what
comes asks this in the same call, so that no order of calls can leave a job parked that could go on.

Keys: boxes
Uses: call(now) state(field_in) box(entry_field mail_field)
]]

--- Return the name of the signals that an entry waits for: the name of the entry without the number of its repetition.
local function signal_of(name)
  return name:match('^[^#]*')
end

--- Return the name of an entry, its kind (waits, sleeps, or any other word if it waits for nothing), and until when it
--- waits; nil without an end.
local function read_wait(text)
  local name, kind = (text or ''):match('^(%S+) (%l+)')
  local is_over = kind ~= 'waits' and kind ~= 'sleeps'
  return name or '', kind or '', not is_over and tonumber(field_in(text, ' until=')) or nil
end

--- Look at the entries that a job waits for; WAITS are their numbers, with commas. Returns whether the job can go on; the
--- entry whose signal has come, if one has; the first moment that the job waits for; and whether an entry is not there.
local function look_for_ripe(life, waits)
  local is_ripe, first, cause, is_lost = false, nil, nil, false
  for mark in waits:gmatch('%d+') do
    local name, kind, till = read_wait(life and redis.call('HGET', boxes, entry_field(life, tonumber(mark))))
    if kind == 'waits' and redis.call('HEXISTS', boxes, mail_field(life, signal_of(name))) == 1 then
      is_ripe, cause = true, cause or mark
    elseif kind ~= 'waits' and kind ~= 'sleeps' then
      is_ripe = true   -- if Redis has lost the entry, the handler begins it again
      is_lost = is_lost or kind == ''
    end
    if till then
      is_ripe = is_ripe or till <= now
      first = math.min(first or till, till)
    end
  end
  return is_ripe, cause, first, is_lost
end

--- Return whether a box lacks an entry that its worker has saved. KNOWS are numbers with commas, and `+` after the number
--- of an entry that is not only begun.
local function is_behind(life, knows)
  for mark, saved in knows:gmatch('(%d+)(%+?)') do
    local _, kind = read_wait(redis.call('HGET', boxes, entry_field(life, tonumber(mark))))
    if kind == '' or (saved == '+' and kind ~= 'saved') then
      return true
    end
  end
  return false
end
