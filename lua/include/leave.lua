--[[ leave: jobs that go although nobody has claimed them. A plain list keeps the entry of one that was ready, as a
tombstone that claim passes over, so that leaving costs the same at any depth.

Keys: state jobs scheduled
Later: tombstones
Uses: state lanes meta batch
]]

local left_ids, left_marks, new_tombstones = {}, {}, 0

--- A job goes. If its lane was open, what stood behind it may be served now.
local function leave(id, job)
  left_ids[#left_ids + 1] = id
  left_marks[#left_marks + 1] = 'job|' .. id
  if job.state == 'ready' and job.lane then
    local lane = lane_of(job.lane)
    local was_open = lane.where == 'open'
    remove(lane, member_of(lane, count(job, 'seq'), id))
    if was_open then
      moved_on(lane)
    end
  elseif job.state == 'ready' then
    new_tombstones = new_tombstones + 1
    foresee('tombstones')
  end
end

local function write_leaves()
  call_many('HDEL', state, left_ids)
  call_many('HDEL', jobs, left_ids)
  call_many('ZREM', scheduled, left_marks)
  if new_tombstones > 0 then
    set_fact('tombstones', fact('tombstones') + new_tombstones)
  end
end
